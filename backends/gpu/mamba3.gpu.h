// The kernels of Mamba-3.
#pragma once

#include "samba/backends/gpu/mamba3_scan_backward.gpu.h"
#include "samba/backends/gpu/mamba3_tokens_backward.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

class Mamba3Gpu final : public Mamba3Kernels, public Mamba3Products {
 public:
  explicit Mamba3Gpu(Context& context) : context_(context) {}

  void prepare_tokens(const Mamba3Call& call) override { launch_prepare_tokens(context_, call); }
  void accumulate_angles(const Mamba3Call& call) override { launch_accumulate_angles(context_, call); }
  void rotate(const Mamba3Call& call) override { launch_rotate(context_, call); }
  void weigh(const Mamba3Call& call) override { launch_weigh(context_, call); }
  void scan(const Mamba3Call& call) override { launch_scan(context_, call); }

  void gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override {
    launch_gate_backward(context_, call, gradients);
  }
  void scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override {
    launch_scan_backward(context_, call, gradients, false);
  }
  void scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) override {
    launch_scan_backward(context_, call, gradients, true);
  }
  void rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override {
    launch_rotate_backward(context_, call, gradients);
  }
  void tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override {
    launch_tokens_backward(context_, call, gradients);
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<Mamba3Kernels> make_mamba3(Context& context) { return std::make_unique<Mamba3Gpu>(context); }

}  // namespace samba::SAMBA_GPU
