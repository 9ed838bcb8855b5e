"""A tiny dataset in the layout of NeuSight: one traced layer of three operations on four machines."""

from __future__ import annotations

import json
from pathlib import Path

MACHINES = {
    "NVIDIA_L4": (30_000, 300, 60, 2040), "Tesla_T4": (8_000, 320, 40, 1590),
    "Tesla_V100-PCIE-32GB": (14_000, 900, 80, 1370), "NVIDIA_H100_80GB_HBM3": (67_000, 3430, 132, 1980),
}  # fmt: skip
COLUMNS = "op,target,_input_nodes,meta,input_shapes,fw_latency,bw_latency,output_shape,dtype,Name"


def table(batch: int, flops: float, bandwidth: float) -> str:
    """Operators whose times are twice the roofline: embedding, linear of layer 0, its sum, head."""
    tokens = batch * 512
    embedding = 2e3 * 2 * 4 * tokens * 1024 / bandwidth
    linear, head = 2e3 * 2 * tokens * 1024 * 1024 / flops, 2e3 * 2 * tokens * 1024 * 4096 / flops
    add = 2e3 * 3 * 4 * tokens * 1024 / bandwidth
    shape = f'"({batch}, 512, 1024)",torch.float32'
    module = "{{'nn_module_stack': OrderedDict([('m', <class 'torch.nn.modules.{}'>)])}}".format
    return "\n".join((
        COLUMNS,
        f'placeholder,ids,{{}},{{}},[],0.0,0,"({batch}, 512)",torch.int64,ids',
        f'call_module,wte,{{ids: None}},"{module("sparse.Embedding")}","[[{batch}, 512]]",{embedding},0,{shape},wte',
        f'call_module,h.0.fc,{{wte: None}},"{module("linear.Linear")}","[[{batch}, 512, 1024]]",{linear},0,{shape},fc',
        f'call_method,size,{{fc: None}},{{}},"[[{batch}, 512, 1024]]",0.007,0,"(1,)",,size',
        f'call_function,<built-in function add>,"{{fc: None, wte: None}}",{{}},'
        f'"[[{batch}, 512, 1024], [{batch}, 512, 1024]]",{add},0,{shape},add',
        f'call_module,lm_head,{{add: None}},"{module("linear.Linear")}","[[{batch}, 512, 1024]]",{head},0,'
        f'"({batch}, 512, 4096)",torch.float32,head',
        f'output,output,{{head: None}},{{}},"[[{batch}, 512, 4096]]",0.0,0,"({batch}, 512, 4096)",torch.float32,output',
    )) + "\n"  # fmt: skip


def write(folder: Path) -> Path:
    """Write the dataset, with 24 layers and batches of 4 and 8, and return `folder`."""
    for name, (gigaflops, gigabytes, cores, megahertz) in MACHINES.items():
        rates = {"SingleFLOPs": gigaflops, "Mem_Bw": gigabytes, "Num_Sm": cores, "Freq": megahertz, "L2Cache": 40}
        configs, labels = folder / "data/device_configs", folder / "label" / name
        configs.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        (configs / f"{name}.json").write_text(json.dumps({**rates, "Dev_Mem": 24}))
        for batch in (4, 8):
            flops, bandwidth = gigaflops * 1e9, gigabytes * 1e9
            (labels / f"tiny-inf-512-{batch}.csv").write_text(table(batch, flops, bandwidth))
            tokens = batch * 512
            linear = 2e3 * 2 * tokens * 1024 * (24 * 1024 + 4096) / flops
            moved = 2e3 * 4 * tokens * 1024 * (2 + 24 * 3) / bandwidth
            whole = {"num_layer": 24, "e2e_latency": linear + moved, "fw_latency": linear + moved, "bwall_latency": 0}
            (labels / f"tiny-inf-512-{batch}.json").write_text(json.dumps(whole))
    return folder
