"""Pure decisions: values in, a decision with its reason out."""
