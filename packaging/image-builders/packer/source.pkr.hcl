packer {
  required_version = ">= 1.7"
  required_plugins {
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = ">= 1.0"
    }
  }
}

variable "image" {
  type        = string
  description = "A Debian or Ubuntu cloud image, by path or address."
}

variable "image_checksum" {
  type = string
}

variable "ssh_password" {
  type      = string
  sensitive = true
}

source "qemu" "node" {
  disk_image       = true
  iso_url          = var.image
  iso_checksum     = var.image_checksum
  format           = "qcow2"
  headless         = true
  ssh_username     = "debian"
  ssh_password     = var.ssh_password
  shutdown_command = "sudo -n systemctl poweroff"
}
