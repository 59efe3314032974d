# An AMI for Windows nodes with GPUs: the EKS-optimized one with NVIDIA's GRID driver.
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1"
    }
  }
}

variable "region" {
  type = string
}

variable "name" {
  type        = string
  description = "Name of the AMI."
}

variable "kubernetes_version" {
  type        = string
  description = "Version of the cluster, such as 1.35."
}

variable "driver" {
  type        = string
  default     = "latest"
  description = "Directory of the driver in s3://ec2-windows-nvidia-drivers."
}

source "amazon-ebs" "node" {
  ami_name = var.name
  region   = var.region
  # The driver's installer needs the GPU.
  instance_type = "g4dn.xlarge"

  source_ami_filter {
    owners      = ["amazon"]
    most_recent = true
    filters = {
      name = "Windows_Server-2022-English-Full-EKS_Optimized-${var.kubernetes_version}-*"
    }
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = 100
    volume_type           = "gp3"
    delete_on_termination = true
  }

  temporary_iam_instance_profile_policy_document {
    Version = "2012-10-17"
    Statement {
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:ListBucket"]
      Resource = ["arn:aws:s3:::ec2-windows-nvidia-drivers", "arn:aws:s3:::ec2-windows-nvidia-drivers/*"]
    }
  }

  user_data_file = "${path.root}/winrm.ps1"
  communicator   = "winrm"
  winrm_username = "Administrator"
  winrm_use_ssl  = true
  winrm_use_ntlm = true
  winrm_insecure = true # The certificate is self-signed.
  winrm_timeout  = "30m"

  # Sysprep shuts the instance down.
  disable_stop_instance = true
}

build {
  sources = ["source.amazon-ebs.node"]

  provisioner "powershell" {
    script           = "${path.root}/driver.ps1"
    environment_vars = ["DRIVER=${var.driver}"]
  }

  provisioner "windows-restart" {}

  provisioner "powershell" {
    script = "${path.root}/finish.ps1"
  }
}
