"""The server half: OpenAI's wire on one side, the channel to the core on the other; no torch.

A request passes http -> asking -> preparing -> groups -> router -> answering. What all of them share stands in serving.
"""
