"""Several models behind one address: what a switch takes, what two models of equal load cost with room for one, and
what a chat's tokens feel of an embedder beside it. Real servers, asked over HTTP."""
