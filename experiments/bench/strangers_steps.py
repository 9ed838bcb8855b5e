"""Training steps of the benchmark of strangers: models of the transformers library, with random weights and Adam."""

from __future__ import annotations

_LAYERS = "num_hidden_layers=4,hidden_size=256,num_attention_heads=4,intermediate_size=1024"
_WORDS = "vocab_size=2000,length=64,batch=4,optimizer=adam"
_ENCODER = f"{_LAYERS},{_WORDS}"
_GPT2 = "n_embd=256,n_layer=4,n_head=4,bos_token_id=1,eos_token_id=1"

STEPS = {
    "bert": f"transformers:bert:{_ENCODER}",
    "albert": f"transformers:albert:{_ENCODER},embedding_size=128",
    "electra": f"transformers:electra:{_ENCODER},embedding_size=128",
    "distilbert": f"transformers:distilbert:dim=256,n_layers=4,n_heads=4,hidden_dim=1024,{_WORDS}",
    "deberta-v2": f"transformers:deberta-v2:{_ENCODER}",
    "gpt2": f"transformers:gpt2:{_GPT2},{_WORDS}",
    "llama": f"transformers:llama:{_ENCODER},num_key_value_heads=2",
    "qwen2": f"transformers:qwen2:{_ENCODER},num_key_value_heads=2",
    "mixtral": "transformers:mixtral:num_hidden_layers=2,hidden_size=256,num_attention_heads=4,intermediate_size=512,"
    f"num_key_value_heads=2,num_local_experts=4,{_WORDS}",
    "mamba": "transformers:mamba:num_hidden_layers=2,hidden_size=256,state_size=8,vocab_size=2000,length=16,batch=4,"
    "optimizer=adam",
    "t5": f"transformers:t5:d_model=256,d_kv=64,d_ff=1024,num_layers=3,num_heads=4,{_WORDS}",
    "vit": f"transformers:vit:{_LAYERS},image_size=64,patch_size=8,batch=4,optimizer=adam",
}
"""By name, what `gst.programs.resolve` takes: encoders, decoders, both, a mixture of experts, a state space, images."""
