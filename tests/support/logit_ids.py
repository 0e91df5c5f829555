"""The token ids that the stored logits of the tiny model belong to."""

# The window that the fixtures' logits belong to (it is not row 0 of eval_ids.npy), recovered from the logits token by
# token: only the right one continues them, and the whole reads as a piece of Python's lib2to3.
# fmt: off
LOGIT_IDS = [
    30, 338, 673, 338, 11, 9, 1334, 1334, 285, 534, 285, 902, 603, 30, 338, 633, 9, 809, 13, 338, 28, 9, 2607, 5616,
    30, 809, 12, 657, 3638, 603, 30, 338, 603, 9, 1073, 223, 762, 1240, 2967, 9, 1073, 223, 1905, 30, 338, 673, 420,
    2280, 338, 11, 9, 1334, 809, 13, 1334, 657, 809, 12, 1334, 1334, 285, 534, 285, 3456, 31, 4355, 65, 299, 3101,
    30, 338, 4355, 9, 809, 12, 338, 2967, 9, 809, 12, 1334, 285, 563, 365, 1337, 323, 310, 810, 4, 403, 3405, 15,
    2566, 1874, 2227, 7496, 365, 411, 1141, 65, 2258, 10, 448, 14, 1874, 14, 2914, 438, 289, 2339, 10, 5912, 2930,
    14, 389, 582, 1359, 65, 2258, 10, 2258, 14, 2914, 11, 481, 304, 323, 1711,
]
# fmt: on
