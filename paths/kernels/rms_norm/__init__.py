"""RMSNorm: x · rsqrt(mean(x²) + eps) · g."""
