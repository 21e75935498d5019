"""Models that have no file here, computed by the modules of the `transformers` library: the slow way to run them.

The scheduler, the paged KV cache, request slots and sampling are ours; what is between the tokens and the logits is
torch's. Each module's attention reads and writes the paged cache through the library's attention interface, so that
what keeps state anywhere else cannot be run, and is refused. Needs torch and transformers (extra `transformers`),
which nothing outside of this folder imports.

How a step flows: `ModelRunner` prepares a pass (`backend.TransformersBackend`, with slots as other backends of the host
have them) and hands it to `decoder.TransformersDecoder`. That calls the modules once, with the tokens of all chunks
side by side and the pass's `PagedAttention` as an argument, which the library passes on to every layer's attention;
`attention.paged_attention` finds the blocks of each chunk in it. Logits are computed for the places that are asked for,
and sampled by the native kernels. Products of torch may round differently with more rows beside them: bits may depend
on the batch.
"""
