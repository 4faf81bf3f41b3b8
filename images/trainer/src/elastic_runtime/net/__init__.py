"""Connections, whatever they carry: certificates, framing, limits of sockets."""
