"""The same weights in Hugging Face's GPTNeoXForCausalLM give the same logits and gradients."""

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

NAMES = {  # theirs: ours
    "gpt_neox.embed_in.weight": "embedding.word_embeddings.weight",
    "gpt_neox.final_layer_norm.weight": "head.norm.weight",
    "gpt_neox.final_layer_norm.bias": "head.norm.bias",
    "embed_out.weight": "head.weight",
    "lm_head.weight": "head.weight",  # its newer name
}
PARTS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.output",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
}


def our_name(theirs: str) -> str:
    if theirs in NAMES:
        return NAMES[theirs]
    _, _, layer, *part, kind = theirs.split(".")
    return f"layers.{layer}.{PARTS['.'.join(part)]}.{kind}"


class ExactRotary(torch.nn.Module):
    """Theirs computes angles in float32 always, which would hide everything beyond 1e-7."""

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rotating = 4  # of the 16 dimensions of a head, a quarter
        frequencies = 10000.0 ** -(torch.arange(0, rotating, 2, dtype=torch.float64) / rotating)
        angles = (position_ids[..., None].double() * frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("parallel", [True, False])
def test_logits_and_gradients(make_model, tokens, parallel: bool) -> None:
    ours = make_model(
        pos_emb="rotary", rotary_pct=0.25, hidden_size=64, gpt_j_residual=parallel, no_weight_tying=True, layernorm_epsilon=1e-5
    )
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():  # biases and norms away from zero and one
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    config = GPTNeoXConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, hidden_act="gelu",
        rotary_pct=0.25, use_parallel_residual=parallel, layer_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = GPTNeoXForCausalLM(config).double().eval()
    assert 2 * len(theirs.gpt_neox.rotary_emb.inv_freq) == 4
    theirs.gpt_neox.rotary_emb = ExactRotary()
    parameters = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(parameters.pop(our_name(name)))
    assert not parameters  # every one of ours has its counterpart

    logits, expected = ours(tokens), theirs(tokens).logits[..., :61]
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    coefficients = torch.randn(logits.shape, dtype=torch.float64, generator=generator)
    (logits * coefficients).sum().backward()
    (expected * coefficients).sum().backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(gradients[our_name(name)], parameter.grad, atol=1e-8, rtol=1e-9)
