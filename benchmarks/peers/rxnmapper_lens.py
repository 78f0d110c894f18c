"""rxnmapper in its own environment, where nothing of Addnorm is.

rxnmapper_lens.py URL MODEL: maps the reactions of rxnmapper's README by the attention that a
server gives, and by rxnmapper's own; prints both as JSON, beside what that README says.
"""

import json
import sys
from typing import Any

import httpx
import torch
from rxnmapper import RXNMapper

KNOWN = {  # reaction -> what rxnmapper's README (0.4.3) says of it
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F": {
        "mapped_rxn": "CN(C)C=O.F[c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11].O=C([O-])[O-]."
        "[CH3:1][CH:2]([CH3:3])[SH:4].[K+].[K+]>>[CH3:1][CH:2]([CH3:3])[S:4][c:5]1[n:6][cH:7][cH:8]"
        "[cH:9][c:10]1[F:11]",
        "confidence": 0.9565619900376546,
    },
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12": {
        "mapped_rxn": "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9]"
        "[CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl>>[O:1]="
        "[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14]"
        "[c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12",
        "confidence": 0.9704424331552834,
    },
}


class Served(RXNMapper):  # type: ignore[misc]
    """rxnmapper, with the attention of its layer and head from a server."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__()
        self.url, self.name = url, model

    def convert_batch_to_attns(
        self, rxn_smiles_list: list[str], force_layer: Any = None, force_head: Any = None
    ) -> list[torch.Tensor]:
        body = {
            "model": self.name,
            "input_ids": self.tokenizer(rxn_smiles_list)["input_ids"],
            "outputs": ["attentions"],
            "attentions": {"layers": self.layers, "heads": [self.head]},
        }
        answer = httpx.post(f"{self.url}/v1/infer", json=body, timeout=60).raise_for_status().json()
        (layer,) = answer["attentions"]
        return [torch.tensor(maps[0]) for maps in layer]


def main(url: str, model: str) -> None:
    mappers = {"served": Served(url, model), "own": RXNMapper()}
    maps = {
        kind: mapper.get_attention_guided_atom_maps(list(KNOWN)) for kind, mapper in mappers.items()
    }
    rows = zip(maps["served"], maps["own"], KNOWN.values(), strict=True)
    print(json.dumps([dict(zip(("served", "own", "known"), row, strict=True)) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
