"""SSH connections to hosts: by paramiko, or by the ssh program if only that can make them."""
