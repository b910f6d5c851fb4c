"""Reading `kernels/`, compiler options, kernel variants and building them. Knows nothing of the user's arrays."""
