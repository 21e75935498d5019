"""Where prefill and decode on engines of their own pay: a map over lengths, targets and links, and a check against
what others have published; simulated, with Llama-3.1-70B on H100s by its data sheet.

The shapes of traffic and the targets (`shapes`) were fixed before the first run. A layout is worth the highest rate at
which it meets the targets, per GPU: engines that compute whole prompts, engines that compute them in chunks beside
decodes, and pools for the two in the best split of up to four engines.
"""
