// The Python module forerun._native.kernels.
#include <nanobind/nanobind.h>

#include "bindings.h"

NB_MODULE(kernels, m) {
  m.doc() = "The compiled kernels of forerun's CPU engine.";
  forerun::cpu::bind_model(m);
  forerun::cpu::bind_modules(m);
  forerun::cpu::bind_sampling(m);
  forerun::cpu::bind_verification(m);
  forerun::cpu::bind_draft_chains(m);
  forerun::cpu::bind_machine(m);
}
