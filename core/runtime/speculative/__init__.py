"""Speculative decoding: a draft model proposes tokens, the target computes them all at once.

Which tokens come out never depends on the draft; only how many come out of one forward does.

::

    propose   the draft catches up with the tokens (DRAFT_EXTEND), then goes on alone (DECODE)
    verify    one forward of the target over its last token and the proposal (TARGET_VERIFY)
    accept    sampled tokens stand as long as they equal the proposal, and the first that does not
"""
