#include "ptx/module.h"

#include "ptx/kernel_reader.h"
#include "ptx/reader.h"

namespace mtl::ptx {

Module::Module(std::string text) : text_(std::move(text)) {
  Reader reader(text_, 1);
  while (!reader.ended()) {
    const size_t begin = reader.at();
    const int line = reader.line();
    const std::string_view word = reader.word();
    if (word == ".target") {
      target_ = trimmed(reader.until("\n,"));
      reader.until("\n");
    } else if (word == ".version" || word == ".address_size" || word == ".file") {
      reader.until("\n");
    } else if (word == ".shared") {
      const Variable one = variable(reader);
      reader.want(';');
      shared_[std::string(one.name)] = {one.bytes, one.align, one.open};
    } else if (word == ".entry") {
      const std::string name(reader.word());
      reader.until("{");
      reader.want('{');
      reader.leave_braces();
      sources_[name] = {reader.from(begin), line};
    } else if (word == ".section") {
      reader.until("{");
      reader.want('{');
      reader.leave_braces();
    } else if (word != ".visible" && word != ".weak" && word != ".extern") {
      not_understood(line, word, "unknown");
    }
  }
}

std::vector<std::string> Module::names() const {
  std::vector<std::string> result;
  for (const auto& [name, source] : sources_) result.push_back(name);
  return result;
}

const Kernel& Module::kernel(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  const auto known = kernels_.find(name);
  if (known != kernels_.end()) return *known->second;
  const auto source = sources_.find(name);
  if (source == sources_.end()) {
    throw std::runtime_error(fmt::format("PTX: no kernel {}", name));
  }
  auto made =
      std::make_unique<const Kernel>(read_kernel(*this, source->second.text, source->second.line));
  return *kernels_.emplace(source->first, std::move(made)).first->second;
}

}  // namespace mtl::ptx
