"""llama-server's own endpoints: /infill, /completion, /apply-template, /props, /slots."""
