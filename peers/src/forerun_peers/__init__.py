"""transformers, llama.cpp and OpenVINO beside forerun, as entry points of the group `forerun.peers`."""
