"""Plans of moves that make room: exact up to a node, near the bound at the size of a fleet."""
