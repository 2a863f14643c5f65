"""Plain implementations, straight from the equations, that the fast ones are compared with."""
