// The work of a decode step as one launch: an offer that executors of devices make beside their own interface (a
// dynamic_cast of the Executor finds it).
//
//   graph.begin_step();
//   ...                  // calls of the executor
//   graph.run_step();
#pragma once

#include <cstdint>

#include "samba/core/array.h"

namespace samba {

class StepGraph {
 public:
  virtual ~StepGraph() = default;

  // From now on calls of the executor are kept in their order and not carried out, until run_step(). A call that needs
  // values of the device on the host, or brings values there, first has what was kept so far carried out.
  virtual void begin_step() = 0;
  // Carries out what was kept, in one launch where the step is like an earlier one: then with the arguments of now.
  virtual void run_step() = 0;
  // Forgets what was kept: the step has failed.
  virtual void drop_step() noexcept = 0;

  // What ElementwiseKernels::first_non_finite returns, into `first` in device memory.
  virtual void search_non_finite(Index n, const float* x, std::int64_t* first) = 0;
};

}  // namespace samba
