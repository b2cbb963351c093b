// The functions between the two products of an MLP.
#pragma once

namespace forerun::cpu {

enum class Activation { silu, gelu_tanh, gelu_erf, relu };

}  // namespace forerun::cpu
