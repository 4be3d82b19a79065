"""Inputs of a step of model runner V2, made on the device from persistent state by slot."""
