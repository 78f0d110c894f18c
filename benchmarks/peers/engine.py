"""An engine that computes a folder of sentence-transformers (BERT, mean pooling, length 1), as its
users would run it: engine.py NAME CHECKPOINT MADE PORT, by the interpreter of build/engines.

POST /timed: {"texts": [...], "batch": 32} -> float64 seconds and CPU seconds, then the vectors as
float32. What is made of the checkpoint is kept in the folder MADE, where calibration.json lies, and
Addnorm's int8 graph.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Response

Texts = Sequence[str]
Encode = Callable[[Texts], Any]  # one batch -> vectors [texts, d_model]
LONGEST, THREADS = 256, 2
STREAMS = "openvino-int8-streams"
OURS = "addnorm.int8.onnx"  # in MADE


def batches(texts: Texts, size: int) -> Iterator[list[int]]:
    """Indices, the longest first, as SentenceTransformer.encode takes them."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    yield from (order[start : start + size] for start in range(0, len(texts), size))


def mean_vectors(rows: Any, mask: Any) -> Any:
    """The mean of real tokens, at length 1."""
    means = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def tokenizer_of(checkpoint: Path) -> Callable[[Texts], dict[str, Any]]:
    """A batch padded to its longest text, as int64 arrays."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "np"}
    return lambda texts: {
        name: array.astype(np.int64) for name, array in tokenizer(list(texts), **options).items()
    }


def export_graph(checkpoint: Path, folder: Path) -> Path:
    """The usual fp32 export: padded, with a mask."""
    if (folder / "model.onnx").exists():
        return folder / "model.onnx"
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, attn_implementation="sdpa").eval()
    inputs = {
        name: torch.from_numpy(a) for name, a in tokenizer_of(checkpoint)(["a b", "c"]).items()
    }
    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        model,
        (),
        str(folder / "model.onnx"),
        kwargs=inputs,
        dynamic_shapes=dict.fromkeys(inputs, dims),
        output_names=["rows", "pooler"],
        dynamo=True,
        external_data=False,
    )
    return folder / "model.onnx"


def sentence_transformers(checkpoint: Path, dtype: str) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(checkpoint), device="cpu", model_kwargs={"dtype": dtype})
    assert torch.get_num_threads() <= THREADS
    return lambda texts: model.encode(
        list(texts), batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False
    ).astype(np.float32)


def quantize_graph(graph: Path, folder: Path) -> Path:
    """The usual int8: weights by column, one scale for all of a product's input."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, folder / "int8.onnx", weight_type=QuantType.QInt8)
    return folder / "int8.onnx"


def onnxruntime(checkpoint: Path, graph: Path) -> Encode:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session, read = ort.InferenceSession(str(graph), options), tokenizer_of(checkpoint)
    names = {tensor.name for tensor in session.get_inputs()}
    first = session.get_outputs()[0].name  # the rows, [texts, width, d_model]

    def encode(texts: Texts) -> Any:
        inputs = read(texts)
        rows = session.run([first], {n: a for n, a in inputs.items() if n in names})[0]
        return mean_vectors(rows, inputs["attention_mask"])

    return encode


def openvino(
    checkpoint: Path, folder: Path, calibration: Texts, *, int8: bool, streams: int = 1
) -> Encode:
    """streams: of one thread each, if there are several; as many batches at once."""
    import openvino as ov

    core, read = ov.Core(), tokenizer_of(checkpoint)
    model = core.read_model(export_graph(checkpoint, folder))
    names = [port.get_any_name() for port in model.inputs]

    def inputs_of(texts: Texts) -> dict[str, Any]:
        inputs = read(texts)
        return {name: inputs[name] for name in names}

    if int8:
        import nncf

        parts = [calibration[start : start + 8] for start in range(0, len(calibration), 8)]
        dataset = nncf.Dataset(parts, inputs_of)
        model = nncf.quantize(model, dataset, model_type=nncf.ModelType.TRANSFORMER)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    hint = {"NUM_STREAMS": streams} if streams > 1 else {"PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(model, "CPU", {**options, **hint})

    def encode(texts: Texts) -> Any:
        inputs = inputs_of(texts)
        rows = compiled.infer_new_request(inputs)[0]  # two threads may ask at once
        return mean_vectors(rows, inputs["attention_mask"])

    return encode


def ctranslate2(checkpoint: Path, folder: Path, compute_type: str) -> Encode:
    import ctranslate2
    from transformers import AutoTokenizer

    converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
    model_folder = converter.convert(
        str(folder / compute_type), quantization=compute_type, force=True
    )
    encoder = ctranslate2.Encoder(model_folder, compute_type=compute_type, intra_threads=THREADS)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def encode(texts: Texts) -> Any:
        ids = tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
        rows = np.array(encoder.forward_batch(ids).last_hidden_state)
        lengths = np.array([len(sequence) for sequence in ids])
        return mean_vectors(rows, (np.arange(rows.shape[1]) < lengths[:, None]).astype(np.float32))

    return encode


def fastembed(checkpoint: Path, folder: Path) -> Encode:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    export_graph(checkpoint, folder)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((checkpoint / name).read_text())
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
               "cls_token": "[CLS]", "mask_token": "[MASK]"}  # fmt: skip
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    model_options = {
        "model": "local",
        "pooling": PoolingType.MEAN,
        "normalization": True,
        "dim": 384,
    }
    TextEmbedding.add_custom_model(
        **model_options, sources=ModelSource(hf="local"), model_file="model.onnx"
    )
    model = TextEmbedding("local", specific_model_path=str(folder), threads=THREADS)
    return lambda texts: np.array(list(model.embed(list(texts), batch_size=len(texts))), np.float32)


def create_app(name: str, checkpoint: Path, calibration: Texts, folder: Path) -> FastAPI:
    makers: dict[str, Callable[[], Encode]] = {
        "torch": lambda: sentence_transformers(checkpoint, "float32"),
        "torch-bfloat16": lambda: sentence_transformers(checkpoint, "bfloat16"),
        "onnxruntime": lambda: onnxruntime(checkpoint, export_graph(checkpoint, folder)),
        "onnxruntime-int8": lambda: onnxruntime(
            checkpoint, quantize_graph(export_graph(checkpoint, folder), folder)
        ),
        "onnxruntime-ours": lambda: onnxruntime(checkpoint, folder / OURS),
        "openvino": lambda: openvino(checkpoint, folder, calibration, int8=False),
        "openvino-int8": lambda: openvino(checkpoint, folder, calibration, int8=True),
        STREAMS: lambda: openvino(checkpoint, folder, calibration, int8=True, streams=THREADS),
        "ctranslate2": lambda: ctranslate2(checkpoint, folder, "float32"),
        "ctranslate2-int8": lambda: ctranslate2(checkpoint, folder, "int8"),
        "fastembed": lambda: fastembed(checkpoint, folder),
    }
    encode, app = makers[name](), FastAPI()
    at_once = THREADS if name == STREAMS else 1

    @app.post("/timed")
    def time_encode(texts: list[str] = Body(), batch: int = Body()) -> Response:  # noqa: B008
        started, started_cpu = time.perf_counter(), time.process_time()
        vectors = np.empty((len(texts), 384), np.float32)
        parts = list(batches(texts, batch))
        with ThreadPoolExecutor(at_once) as pool:
            outputs = pool.map(lambda indices: encode([texts[i] for i in indices]), parts)
            for indices, rows in zip(parts, outputs, strict=True):
                vectors[indices] = rows
        took = [time.perf_counter() - started, time.process_time() - started_cpu]
        return Response(np.array(took).tobytes() + vectors.tobytes())

    return app


if __name__ == "__main__":
    name, checkpoint, work_folder, port = sys.argv[1:]
    calibration = json.loads(Path(work_folder, "calibration.json").read_text())
    app = create_app(name, Path(checkpoint), calibration, Path(work_folder))
    uvicorn.run(app, port=int(port), log_level="warning")
