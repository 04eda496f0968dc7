"""The server half: OpenAI's API on one side, the channel to the core on the other; no torch.

A request passes http -> asking -> preparing -> groups -> router -> answering. What all of these share is in serving.
"""
