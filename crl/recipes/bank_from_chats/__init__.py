"""A bank from chats that people have (`crl bank build`): read, distilled, published; nothing is played or trained."""
