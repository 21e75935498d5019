"""Keys and values between engines: how fast blocks travel (`rates`), and what the first decode step waits for behind
the last chunk of its prompt (`waits`), over a link of this host and over one of 1 Gbit/s (`slow_link`); with a picture
of what travels while the prefill computes (`overlap`)."""
