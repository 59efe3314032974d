// Package initoption has nothing, like package ktesting.
package initoption
