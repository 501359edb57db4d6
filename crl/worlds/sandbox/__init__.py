"""Where worlds run programs of others: sandboxes of bubblewrap with limits. No world by itself."""
