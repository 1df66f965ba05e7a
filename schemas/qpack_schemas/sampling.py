"""What the `sample` instruction reads per slot, and its limits: for lowering, executors and the request parser."""

TOP_K_LIMIT = 256
BIAS_LIMIT = 512  # logit bias entries of one request
TOP_LOGPROBS_LIMIT = 20

# Columns of `sampling.ints` [S, 6], int32. The seed is 64 bits in two words, top_p24 = round(top_p * TOP_P_ONE).
INTS = ("flags", "top_k", "top_p24", "seed_low", "seed_high", "bias_count")
TOP_P_ONE = 1 << 24  # top_p24 of top_p = 1: no cut
# Columns of `sampling.floats` [S, 6], float32. The host computes both reciprocals, so no executor divides.
FLOATS = ("inverse_temperature", "ln_min_p", "repetition", "inverse_repetition", "presence", "frequency")

# Bits of `flags`: a filter that a request does not ask for is skipped, not run with a neutral value.
GREEDY, PENALTY, BIAS, GRAMMAR, LOGPROBS, FILTER = (1 << bit for bit in range(6))

# Bits of `status`: the row got no token and did not advance.
NONFINITE = 1  # a logit is NaN or +inf
EMPTY = 2  # the grammar, or logits of -inf, forbid every token

# `counts` [S, V], int16: bit 15 says that the id is in the prompt, bits 0..14 how often it was consumed as output.
PROMPT_BIT = -32768
COUNT_MASK = 32767

# The mass of the whole vocabulary is summed in chunks of about CHUNK_IDS ids, each at its own exponent, so that one
# pass over the logits is enough: id belongs to chunk (id // 32) % ceil(width / CHUNK_IDS).
CHUNK_IDS = 4096
