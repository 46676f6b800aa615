"""Every registered method alone and under a map of each kernel size and possible form: what the tests of all methods run over."""

import itertools

from megatron.config.methods import METHODS

FORMS = ("s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)")
BIASED = {name for name, method in METHODS.items() if "bias" in method.load().acts_on}

# (pos_emb, kernel size, form)
VARIANTS = [(name, 1, FORMS[0]) for name in METHODS] + [
    (f"dape_{name}", kernel, form)
    for name, kernel, form in itertools.product(METHODS, (1, 3, 5), FORMS)
    if name in BIASED or form != "s+b+f(b)"
]
