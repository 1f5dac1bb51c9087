"""Plans of collectives: the cheapest legal way through a stack of stages. Pure data, no torch.

::

    facts      what a stage declares, the same on every topology
    steps      the one automaton of legal steps (how values may lie: parallel.placement)
    cost       what steps cost, what fused operations save (bytes and links: parallel.pricing)
    plan       plans, their replay, their digest
    shortest, planner      the cheapest way inside a boundary, and over the stack
    buckets    the plan for a batch, looked up by its size
"""
