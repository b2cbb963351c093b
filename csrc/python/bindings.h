// The parts of the module forerun._native.kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace forerun::cpu {

void bind_model(nanobind::module_& m);
void bind_modules(nanobind::module_& m);
void bind_draft_chains(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_verification(nanobind::module_& m);

}  // namespace forerun::cpu
