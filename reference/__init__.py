"""What is right: exact references for the operator, and how far a correct kernel may be from them."""
