"""The cluster in a box: hosts made of Linux namespaces, with a switch between them and a real sshd on each."""
