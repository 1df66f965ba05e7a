"""Qwen2, Qwen3 and Qwen3.5 -> programs. Decode and prefill share all but the first and the last instructions.

A value has one name: `3.post.x` is the normed input of layer 3's MLP, `3.post.h` the residual stream behind its mixer.
Architecture: transformers' modeling_qwen2, modeling_qwen3 and modeling_qwen3_5.
"""

from qpack_packager.checkpoint.model_config import ModelConfig
from qpack_packager.checkpoint.source_tensor import INT4
from qpack_packager.lowering.builder import Builder, Shared
from qpack_packager.lowering.frame import ROW, emit_choice, emit_rows
from qpack_packager.lowering.modules import Rows, rope_table
from qpack_packager.lowering.vocabulary import Vocabulary, emit_embedding, emit_head
from qpack_packager.quantize.marlin import TILE_N
from qpack_packager.serving import Serving
from qpack_schemas.program import Kind, Program

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class QwenLowering:
    """Emits one program of `config`. Weight modules and buffers that both programs name are collected in `shared`."""

    def __init__(self, config: ModelConfig, serving: Serving, kind: Kind, shared: Shared):
        self.config, self.serving = config, serving
        self.b = Builder(kind, serving.dtype, shared)
        self.vocab = -(-config.vocab_size // TILE_N) * TILE_N  # width of the logits
        self.seats = serving.slots + 1
        self.gated = config.family == "qwen3_5"  # attention is scaled by the sigmoid of the second half of q_proj
        # Qwen3.5's norms multiply by 1 + weight, all but the one inside the delta mixer.
        self.norm_attrs = {"eps": config.rms_norm_eps, "unit_offset": config.family == "qwen3_5"}

    def lower(self, *, tied: bool, real_vocab_size: int) -> Program:
        b, c = self.b, self.config
        tokens, last = emit_rows(b, self.seats, self.vocab)
        lines = (c.vocab_size, c.hidden_size)
        embedding = Vocabulary("embed", EMBEDDING, lines, self.vocab, self.serving.embedding)
        source = EMBEDDING if tied else HEAD
        imported = source in b.shared.sources and b.shared.sources[source].dtype == INT4  # then it stays as it is
        head = Vocabulary("lm_head", source, lines, self.vocab, "int4" if imported else self.serving.lm_head)
        if tied and head.form == embedding.form:
            head = embedding
        h, delta = b.work("h", "R", c.hidden_size), None
        emit_embedding(b, tokens, embedding, h)
        for i, layer in enumerate(c.layers):
            x, h = self.norm(h, delta, f"{i}.input", f"model.layers.{i}.input_layernorm.weight")
            delta = self.attention(i, x) if layer == "full_attention" else self.gated_delta(i, x)
            x, h = self.norm(h, delta, f"{i}.post", f"model.layers.{i}.post_attention_layernorm.weight")
            delta = self.mlp(i, x)
        x, _ = self.norm(h, delta, "final", "model.norm.weight")
        if last:
            y = b.work("final.last", 1, c.hidden_size)
            b.emit("take_rows", {"x": x, "rows": last}, {"y": y})
            x = y
        logits = b.io("logits", "float32", 1 if last else "R", self.vocab)
        emit_head(b, x, head, logits)
        emit_choice(b, logits, self.seats, self.vocab, real_vocab_size, last)
        return b.finish(self.serving.most_rows(b.kind))

    def norm(self, x: str, delta: str | None, name: str, source: str) -> tuple[str, str]:
        """The normed row, and the residual stream after adding `delta`."""
        b, size = self.b, self.config.hidden_size
        weight = b.dense(f"layers.{name}.norm" if name[0].isdigit() else "norm.weight", {Rows(source): (size,)})
        y = b.work(f"{name}.x", "R", size)
        total = b.work(f"{name}.h", "R", size) if delta else None
        b.emit("rms_norm", {"x": x, "delta": delta, "weight": weight}, {"y": y, "sum": total}, **self.norm_attrs)
        return y, total or x

    def attention(self, i: int, x: str) -> str:
        """Grouped-query attention. Columns of the joined projection: q | k | v | gate."""
        b, c, name, source = self.b, self.config, f"{i}.attn", f"model.layers.{i}.self_attn."
        context, queries, keys = self.serving.context, c.attention_heads * c.head_dim, c.kv_heads * c.head_dim

        def columns(kind: str) -> dict[Rows, int]:
            plain = {Rows(f"{source}{p}_proj.{kind}"): keys for p in "kv"}
            query = f"{source}q_proj.{kind}"
            if self.gated:
                return {Rows(query, "query"): queries, **plain, Rows(query, "gate"): queries}
            return {Rows(query): queries, **plain}

        bias = columns("bias") if "q" in c.attention_bias else None
        qkv = b.linear(x, f"{name}.qkv", columns("weight"), c.hidden_size, bias=bias)
        cache = {p: b.state(f"{name}.{p}", self.serving.slots * context + 1, c.kv_heads, c.head_dim) for p in "kv"}
        rope = b.shared.add_module(rope_table(context, c.rotary_dim, c.rope_theta)).name
        norms = dict[str, str]()
        if c.family != "qwen2":
            norms = {
                f"{p}_norm": b.dense(f"layers.{name}.{p}_norm", {Rows(f"{source}{p}_norm.weight"): (c.head_dim,)})
                for p in "qk"
            }
        q = b.work(f"{name}.q", "R", c.attention_heads, c.head_dim)
        inputs = {"x": qkv, "rope": rope, **norms, **ROW}
        b.emit("rope_kv_write", inputs, {"q": q}, cache, context=context, **self.norm_attrs)
        y = b.work(f"{name}.y", "R", queries)
        gate = qkv if self.gated else None
        b.emit("attention", {"q": q, **ROW, **cache, "gate": gate}, {"y": y}, context=context)
        bias = {Rows(f"{source}o_proj.bias"): c.hidden_size} if "o" in c.attention_bias else None
        return b.linear(y, f"{name}.o", {Rows(f"{source}o_proj.weight"): c.hidden_size}, queries, bias=bias)

    def gated_delta(self, i: int, x: str) -> str:
        """Gated DeltaNet. Columns of the joined projection: q | k | v | z."""
        b, d, name, source = self.b, self.config.delta, f"{i}.delta", f"model.layers.{i}.linear_attn."
        assert d is not None  # read_model_config gives one to every model with such a layer
        hidden, heads, values = self.config.hidden_size, d.value_heads, d.value_heads * d.value_dim
        channels = 2 * d.key_heads * d.key_dim + values
        columns = {Rows(f"{source}in_proj_qkv.weight"): channels, Rows(f"{source}in_proj_z.weight"): values}
        qkvz = b.linear(x, f"{name}.qkvz", columns, hidden)
        taps = {Rows(f"{source}conv1d.weight"): (channels, 1, d.conv_kernel)}
        conv = b.dense(f"layers.{name}.conv", taps, stored=(channels, d.conv_kernel))
        ring = b.state(f"{name}.ring", self.seats, channels, d.conv_kernel)
        u = b.work(f"{name}.u", "R", channels)
        b.emit("causal_conv1d", {"x": qkvz, "weight": conv, **ROW}, {"y": u}, {"ring": ring})
        weights = {
            "ba": b.dense(f"layers.{name}.ba", {Rows(f"{source}in_proj_{p}.weight"): (heads, hidden) for p in "ba"}),
            "a_log": b.dense(f"layers.{name}.a_log", {Rows(f"{source}A_log"): (heads,)}, dtype="float32"),
            "dt_bias": b.dense(f"layers.{name}.dt_bias", {Rows(f"{source}dt_bias"): (heads,)}, dtype="float32"),
            "norm": b.dense(f"layers.{name}.norm", {Rows(f"{source}norm.weight"): (d.value_dim,)}),
        }
        memory = b.state(f"{name}.memory", self.seats, heads, d.key_dim, d.value_dim, dtype="float32")
        y = b.work(f"{name}.y", "R", values)
        inputs = {"u": u, "x": x, "z": qkvz, **weights, **ROW}
        b.emit("gated_delta", inputs, {"y": y}, {"memory": memory}, eps=self.config.rms_norm_eps)
        return b.linear(y, f"{name}.out", {Rows(f"{source}out_proj.weight"): hidden}, values)

    def mlp(self, i: int, x: str) -> str:
        b, c, name, source = self.b, self.config, f"{i}.mlp", f"model.layers.{i}.mlp."
        columns = {Rows(f"{source}{p}_proj.weight"): c.intermediate_size for p in ("gate", "up")}
        gate_up = b.linear(x, f"{name}.gate_up", columns, c.hidden_size)
        act = b.work(f"{name}.act", "R", c.intermediate_size)
        b.emit("silu_mul", {"x": gate_up}, {"y": act})
        return b.linear(act, f"{name}.down", {Rows(f"{source}down_proj.weight"): c.hidden_size}, c.intermediate_size)
