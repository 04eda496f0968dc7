"""The backend of a device with its own kernels: Triton's on a GPU, or on a CPU under Triton's interpreter.

runner           the entry point: takes a step without waiting, returns its tokens when they are asked for
packing          a Batch as small arrays
frame            these arrays at fixed places in one range of bytes
transfer         one copy to the device per step, and back
attention        work lists and tiles on the device, and a layer's attention over them
ops              what a decoder asks of its backend
draws            a step's draws as arrays
sampler          tokens from logits; they stay on the device
prompt_logprobs  log probabilities of a prompt's own tokens
worklist         the work list of decode attention: KV spans cut into items, as arrays
tiles            the work list of prefill attention
buckets          sizes that steps are padded to, and how long a work list a recorded step takes
graphs           decoding steps, recorded and replayed
continuation     the recorded step that follows another, moved on instead of planned
memory           how many bytes of memory are left for the KV cache
"""
