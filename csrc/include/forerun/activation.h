// The functions between the two products of an MLP.
#pragma once

namespace forerun::cpu {

// clamped_swiglu is a gate alone (VectorOps::clamped_swiglu).
enum class Activation { silu, gelu_tanh, gelu_erf, relu, clamped_swiglu };

}  // namespace forerun::cpu
