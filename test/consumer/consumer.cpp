// Multiplies two small matrices with an installed samba.
#include <samba/backends/registry.h>

#include <cstdio>

int main() {
  const auto executor = samba::make_executor("cpu");
  const float a[] = {1.0F, 2.0F, 3.0F, 4.0F};
  const float b[] = {5.0F, 6.0F, 7.0F, 8.0F};
  float c[4];
  executor->linear().gemm(samba::Layout::nn, 2, 2, 2, a, b, c);
  std::printf("%g %g %g %g\n", static_cast<double>(c[0]), static_cast<double>(c[1]), static_cast<double>(c[2]),
              static_cast<double>(c[3]));
  return c[0] == 19.0F && c[3] == 50.0F ? 0 : 1;
}
