// Uninitialised working memory of one task.
#pragma once

#include <memory>

template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t n) : data_(new T[n]) {}
  operator T*() { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
};
