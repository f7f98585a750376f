"""Drop-ins for the functions that serving stacks call, one file per upstream, each with its exact signature.

``aiter``, ``vllm`` and ``sglang`` hold the drop-ins, ``flattened`` regroups MTP rows that a caller flattened,
``plugin`` puts drop-ins in the place of the originals. Importing this package, or ``plugin``, loads neither torch nor
HIP.

Names and defaults are the upstream's; what each site leaves unsaid (layout of the cache, what is written, who owns the
output) is stated in the drop-in's docstring. Tuning knobs that the kernels here do not have are checked and then left
alone: none of them changes a value.
"""
