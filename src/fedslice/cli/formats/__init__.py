"""Files that other programs read: a trained model as arrays, tables, a PyTorch state dict, or an
ONNX graph that predicts."""
