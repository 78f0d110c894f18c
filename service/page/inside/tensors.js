// Answers as tensors: safetensors, read to the bit.

import { odd, posted, request, told } from "../server.js";

/** A JSON body -> the answer's tensors as bytes, computed anew: of each output at least one. */
export async function postForTensors(path, body) {
  const headers = { accept: "application/vnd.safetensors", "cache-control": "no-cache" };
  const answer = await request(path, posted(body, headers));
  const buffer = await answer.arrayBuffer().catch(() => new ArrayBuffer());
  const tensors = tensorsIn(buffer);
  if (!tensors) throw odd(answer, `POST ${path}`, "it is not safetensors");
  const names = Object.keys(tensors);
  const missing = body.outputs.filter((name) => !names.some((one) => one === name || one.startsWith(`${name}.`)));
  if (missing.length) throw odd(answer, `POST ${path}`, `it has no ${missing.join(", no ")}`);
  return { tensors, ...told(answer) };
}

/** null if the bytes are something else. */
function tensorsIn(buffer) {
  try {
    return tensorsOf(buffer);
  } catch {
    return null;
  }
}

/** Name -> {shape, words}: float32 as their 32 bits. Other types are left out. */
function tensorsOf(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] = [] }] of Object.entries(header)) {
    if (dtype !== "F32") continue;
    found[name] = {
      shape,
      words: new Uint32Array(buffer.slice(8 + length + from, 8 + length + to)),
    };
  }
  return found;
}
