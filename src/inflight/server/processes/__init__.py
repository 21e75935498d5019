"""HTTP in processes of its own (`--api-processes`): `child` serves, `supervisor`, in the engine's process, starts each,
answers what they cannot know alone, and starts anew what was killed. What is asked of the engine goes another way
(`engine.remote`)."""
