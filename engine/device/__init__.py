"""The backend of a device with kernels of its own: Triton's on a GPU, or on a CPU under Triton's interpreter.

backend        which device and kernels the settings come to
runner      the room's door: a step taken without waiting, its tokens when they are asked for
packing     a Batch as small arrays
frame       such arrays at their places in one run of bytes
transfer    to the device in one copy a step, and back
attention   work lists and tiles on the device, and a layer's attention over them
ops         what a decoder asks of its backend
draws       what a step's draws come to, as arrays
sampler     tokens from logits; they stay on the device
scores      log probabilities of a prompt's own tokens
buckets     sizes that steps are padded to, and how long a work list a recorded one takes
graphs      decoding steps recorded and replayed
memory      how many KV blocks there is room for
"""
