"""SSH connections to hosts through paramiko, or through the ssh program if paramiko can't connect."""
