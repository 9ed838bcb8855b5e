// A CUDA device that a CPU-only PyTorch believes in: it answers questions about devices, and computes nothing.
//
// Autograd asks the guard of a device for streams, and the hooks whether there is such a device. PyTorch keeps the
// object that `getCUDAHooks` made when it was first asked, so `gst_describe_cuda` puts the methods of `DescribedHooks`
// (which has no data) in the place of that object's own. To be called once, in a process that only captures.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace {

struct DescribedGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, {c10::DeviceType::CUDA, 0}); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, DescribedGuard);

struct DescribedHooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return false; }
  at::DeviceIndex deviceCount() const override { return 1; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  long versionCuDNN() const override { return 0; }  // 0: there is none
  long versionRuntimeCuDNN() const override { return 0; }
};
static_assert(sizeof(DescribedHooks) == sizeof(void*), "only methods may differ");

}  // namespace

extern "C" void gst_describe_cuda() {
  static const DescribedHooks described;
  void* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  std::memcpy(hooks, static_cast<const void*>(&described), sizeof(void*));
}
