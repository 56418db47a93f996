"""``nccl-doctor fix``: the only room that changes hosts, and the record of what it changed."""
