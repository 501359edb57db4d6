"""An OpenAI-style front of a policy, through protocols only: a server on loopback (`server`), what it reads and answers
(`messages`), and which sequence of ids a call continues (`conversations`). It knows no episodes."""
